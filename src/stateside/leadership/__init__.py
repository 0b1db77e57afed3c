"""Leadership: of all processes that stand by for an application, one leads. No Spark, no clock that two machines share.

`election` has the protocol, numbered, and the argument why a leader that was paused can commit nothing.
"""

from stateside.leadership.election import Candidate, Leadership, alone
from stateside.leadership.gate import Gates, ungated
from stateside.leadership.lease import Claim, Lease, check_folder
from stateside.leadership.membership import standing

__all__ = ["Candidate", "Claim", "Gates", "Leadership", "Lease", "alone", "check_folder", "standing", "ungated"]
