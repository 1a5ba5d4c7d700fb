"""Tokens of a language model: charge an estimate first, settle what was really used.

The estimate keeps others from overrunning the limit while the model works. An error gives it back.

Prints:

    hello: used 130 of an estimated 500
    a long story: used 840 of an estimated 500
    oops: failed, and charged nothing
    970 tokens charged, 9030 left
"""

from headgate import Limiter

limiter = Limiter()
tokens = limiter.limit("llm:tokens", "10000/minute")
ESTIMATE = 500


def complete(prompt: str) -> int:
    """Stand in for the model; returns how many tokens it used."""
    if prompt == "oops":
        raise ConnectionError(prompt)
    return 840 if "long" in prompt else 130


for prompt in ("hello", "a long story", "oops"):
    try:
        with tokens.reserve(cost=ESTIMATE) as reservation:
            used = complete(prompt)
            reservation.settle(used)
    except ConnectionError:
        print(f"{prompt}: failed, and charged nothing")
    else:
        print(f"{prompt}: used {used} of an estimated {ESTIMATE}")

stats = tokens.stats()
print(f"{stats.count} tokens charged, {stats.remaining} left")
