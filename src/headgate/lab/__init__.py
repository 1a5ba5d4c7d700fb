"""The lab verifies that limits hold. Clients record a history, and the checker compares it with a promise.

history      what happened: a header, faults, and one line per operation       recorder   writes one, from many clients
promises     what each engine and mode promises, as data                       allowances what faults add to a limit
checks/      PURE: does the history keep to that?                              verdict    all checks, and the figures
picture      admissions against the limit over time, as SVG                    black_box  records any limiter behind
                                                                                          HTTP
simulator/   nodes, a store and a network in virtual time, with faults
"""
