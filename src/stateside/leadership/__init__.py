"""Leadership: of all processes that stand by for an application, one leads. No Spark, no clock that two machines share.

`election` has the protocol, numbered, and the argument why a leader that was paused can commit nothing.
"""

from stateside.leadership.alone import alone
from stateside.leadership.election import Candidate
from stateside.leadership.gate import Gates, ungated
from stateside.leadership.leader import Leadership
from stateside.leadership.lease import Claim, Lease
from stateside.leadership.probe import check_folder
from stateside.leadership.standing import standing

__all__ = ["Candidate", "Claim", "Gates", "Leadership", "Lease", "alone", "check_folder", "standing", "ungated"]
