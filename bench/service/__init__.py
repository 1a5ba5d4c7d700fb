"""The service beside a plain FastAPI build of the same design, and beside Go.

Everybody answers the same question with the same headers: `POST /check` with a key, a limit and a window. One server
process on one core, the load generator (wrk, 64 connections) on another; where Redis takes part, it shares the
generator's core. All servers run the whole time and get short slices of load in turn, so whatever slows the machine
down slows everybody. Before that each has to show that it limits.
"""
