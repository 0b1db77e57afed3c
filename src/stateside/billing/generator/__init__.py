"""The generator: customers who telephone, the same for the same seed, and what must come out of it to the micro.

    generator = Generator(seed=1, customers=1_000, periods=3, shares=Shares(late=0.03, duplicate=0.01, bad=0.01))
    for arrival in generator.arrivals(): ...
    generator.report()

`scenario` has the plans and who is on which, `shares` how much goes wrong, `quantities` how a period's usage adds up to
an even amount, `usage` the events of a period, `bad` those that no bill may have, `rows` the events as the journal
stores them, `stream` all of them in the order in which they come in, `report` what must become of them, `writing` where
they go.
"""

from stateside.billing.generator.event_stream import Arrival, Generator
from stateside.billing.generator.expected_totals import ExpectedTotals
from stateside.billing.generator.output import generate
from stateside.billing.generator.quantities import EVEN_MICROS
from stateside.billing.generator.usage import Shares

__all__ = ["EVEN_MICROS", "Arrival", "ExpectedTotals", "Generator", "Shares", "generate"]
