"""The service: checks, rules and management over HTTP, for gateways and for other languages.

From the top down:

process      listening, draining, worker processes
app          everything that one port serves, put together
management   /api, /health and /metrics, a module per topic
http         the check API on the wire: gates, endpoints, the fast path inside uvicorn's protocol, ASGI routes, pages
resp         the Redis protocol on the wire: CL.THROTTLE, and packed calls of the remote engine
front        what the service does for its callers, independent of any wire format: checks, batches, rules, slots
node         one running process and its parts: limiter, board, recorder, tokens, audit log
telemetry    counts, metrics, logs, traces, and whether the store answers
promises     the guarantees under given settings
settings     what an operator can configure; settings_loading reads it
security     tokens, hosts, TLS, the audit log

`/check`, `/check/batch` and `/decide` are answered inside the protocol, without the framework; unusual requests go to
the ASGI route of the same path, which has the same gates and endpoints. Imports point down this list, which `make
check` enforces.
"""
