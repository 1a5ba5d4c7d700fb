"""The shortest useful program: three requests a minute for each user.

Prints:

    ada: go on, 2 left
    ada: go on, 1 left
    ada: go on, 0 left
    ada: wait
    bob: go on, 2 left
"""

from headgate import Limiter

limiter = Limiter()

for user in ("ada", "ada", "ada", "ada", "bob"):
    decision = limiter.hit(f"user:{user}", "3/minute")
    print(f"{user}: go on, {decision.remaining} left" if decision else f"{user}: wait")
