"""Four processes call five APIs as fast as they may, and none is ever refused.

    python examples/wrappers/four_processes.py redis://localhost

Prints for each API how many calls it got, and how many it refused. `--speed 10` makes a minute pass in six seconds.
"""

import argparse
import contextlib
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context

from clients import RATES, Api, LanguageModel
from fake_apis import FakeApi, serving

PROCESSES = 4
LEEWAY = 0.4
"""How much shorter the windows of the fake APIs are: calls that leave evenly may arrive together on a busy machine."""


def call(name: str, url: str, engine: str, speed: float) -> None:
    """Call one API a little more often than one window allows, so that somebody has to wait."""
    if name == "llm":
        model = LanguageModel(url, engine, speed)
        for number in range(9):
            model.complete(f"prompt {number}", estimate=1_000)
        return
    api = Api(name, url, engine, speed)
    for number in range(RATES[name][0] // PROCESSES + 1):
        api.get(f"/item/{number}")


def call_all(urls: dict[str, str], engine: str, speed: float) -> None:
    """What each process does: call every API, in a thread for each."""
    with ThreadPoolExecutor(len(urls)) as pool:
        calls = [pool.submit(call, name, url, engine, speed) for name, url in urls.items()]
        for one in calls:
            one.result()


def main() -> int:
    """Run it; the exit code is the number of refused calls."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", help="the URL of a store that processes share")
    parser.add_argument("--speed", type=float, default=1.0)
    chosen = parser.parse_args()
    speed = chosen.speed
    limits = {**RATES, "llm": (LanguageModel.TOKENS, LanguageModel.SECONDS)}
    refused = 0
    with contextlib.ExitStack() as stack:
        apis = {
            name: stack.enter_context(serving(FakeApi(limit, seconds / speed * LEEWAY)))
            for name, (limit, seconds) in limits.items()
        }
        urls = {name: api.url for name, api in apis.items()}
        processes = [
            get_context("spawn").Process(target=call_all, args=(urls, chosen.engine, speed))
            for _ in range(PROCESSES)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        for name, api in apis.items():
            print(f"{name}: {api.calls} calls, {api.refused} refused")
            refused += api.refused
    return refused + sum(process.exitcode != 0 for process in processes)


if __name__ == "__main__":
    raise SystemExit(main())
