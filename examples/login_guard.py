"""Guard a login: a limit per address and one per account, charged together or not at all.

Guessing passwords of one account from many addresses is stopped by the account's limit, and many accounts
from one address by the address's. A denied attempt is charged to neither.

Prints:

    attempt 1 from 10.0.0.1 on ada: go on
    attempt 2 from 10.0.0.1 on ada: go on
    attempt 3 from 10.0.0.1 on ada: go on
    attempt 4 from 10.0.0.1 on ada: denied for account:ada, try again in 20 s
    attempt 5 from 10.0.0.2 on ada: denied for account:ada, try again in 20 s
    attempt 6 from 10.0.0.1 on bob: go on
    address 10.0.0.2 was charged 0 attempts
"""

from headgate import Charge, Limiter
from headgate.testing import ManualClock

limiter = Limiter(clock=ManualClock())  # A clock that stands still, so that the output is exact.

PER_ACCOUNT = "3/minute burst 3"
PER_ADDRESS = "30/minute burst 30"
ATTEMPTS = [("10.0.0.1", "ada")] * 4 + [("10.0.0.2", "ada"), ("10.0.0.1", "bob")]

for number, (address, account) in enumerate(ATTEMPTS, start=1):
    decision = limiter.decide(
        [
            Charge(f"account:{account}", PER_ACCOUNT),
            Charge(f"address:{address}", PER_ADDRESS),
        ]
    )
    answer = "go on"
    if not decision:
        answer = f"denied for {decision.key}, try again in {decision.retry_after:.0f} s"
    print(f"attempt {number} from {address} on {account}: {answer}")

count = limiter.limit("address:10.0.0.2", PER_ADDRESS).stats().count
print(f"address 10.0.0.2 was charged {count} attempts")
