"""Leadership: one leader among the standbys of an application, without comparing two machines' clocks.

`election` has the numbered protocol, and the argument why a paused leader can commit nothing.
"""

from stateside.leadership.application_lease import ApplicationLease, Claim, standing
from stateside.leadership.election import Candidate, Leadership, alone, excluding_drivers, hold_driver_lock
from stateside.leadership.gate import Gates, check_folder, ungated

__all__ = [
    "ApplicationLease",
    "Candidate",
    "Claim",
    "Gates",
    "Leadership",
    "alone",
    "check_folder",
    "excluding_drivers",
    "hold_driver_lock",
    "standing",
    "ungated",
]
