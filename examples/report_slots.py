"""At most two reports at the same time, whoever asks; a third one is told to come back.

Prints:

    report 1 runs, 1 slot left
    report 2 runs, 0 slots left
    report 3: Rate limit exceeded for key 'reports'
    all done, 2 slots left
"""

from contextlib import ExitStack

from headgate import Limiter, RateLimitExceeded

with Limiter() as limiter:
    reports = limiter.concurrency("reports", 2)

    def left() -> str:
        """How many slots are free."""
        free = reports.stats().remaining
        return f"{free} slot left" if free == 1 else f"{free} slots left"

    with ExitStack() as running:
        for number in (1, 2, 3):
            try:
                running.enter_context(reports.slot())
            except RateLimitExceeded as error:
                print(f"report {number}: {error}")
            else:
                print(f"report {number} runs, {left()}")

    print(f"all done, {left()}")
