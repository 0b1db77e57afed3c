"""The generator: simulated customers, reproducible by seed, and the exact totals that billing must compute.

    generator = Generator(seed=1, customers=1_000, periods=3, shares=Shares(late=0.03, duplicate=0.01, bad=0.01))
    for arrival in generator.arrivals(): ...
    generator.report()

`scenario` defines the plans and their customers, `quantities` usage that adds up to an even amount per period, `usage`
the events of a period, bad events and the shares of irregular ones, `rows` the events as the journal stores them,
`event_stream` all events in order of arrival, `expectation` the expected result, `output` the targets: journal,
files, Kafka.
"""

from stateside.billing.generator.event_stream import Arrival, Generator
from stateside.billing.generator.expectation import ExpectedTotals
from stateside.billing.generator.output import generate
from stateside.billing.generator.quantities import EVEN_MICROS
from stateside.billing.generator.usage import Shares

__all__ = ["EVEN_MICROS", "Arrival", "ExpectedTotals", "Generator", "Shares", "generate"]
