"""The lab verifies that limits hold: clients record a history, and the checker compares it with a promise.

history      what happened: a header, faults, and one line per operation       recorder   writes one, from many clients
promises     what each engine and mode promises, as data                       scene      a history, sorted by key
checks/      PURE: does the history keep the promise?                          verdict    all checks, and the figures
picture      admissions against the limit over time, as SVG                    black_box  records any limiter with an
                                                                                          HTTP API
simulator/   nodes, a store and a network in virtual time, with faults
"""
