"""Leadership: one leader among the standbys of an application, without comparing two machines' clocks.

`election` has the numbered protocol, and the argument why a paused leader can commit nothing.
"""

from stateside.leadership.election import Candidate, Leadership, alone
from stateside.leadership.gate import Gates, ungated
from stateside.leadership.lease import Claim, Lease, check_folder
from stateside.leadership.membership import standing

__all__ = ["Candidate", "Claim", "Gates", "Leadership", "Lease", "alone", "check_folder", "standing", "ungated"]
