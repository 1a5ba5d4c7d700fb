"""The service: checks, rules and management over HTTP, for gateways and for other languages.

settings   what an operator can say, from where            node      one running process, and what it stands on
checks     a question of the check API becomes a decision  server    listening, draining, worker processes
wire       bodies in and out, and what is refused          protocol  the hot path, inside uvicorn's protocol
headers    what a decision looks like in headers           asgi      the same endpoints as ordinary routes
problems   errors as RFC 9457 bodies                       app       everything else, by FastAPI
endpoints  from a body to a reply, for both ways           connection  order, time-outs and closing, for the protocol

One port serves all of it. `/check`, `/check/batch` and `/decide` are answered inside the protocol, without the framework; what
is not the plain case of them goes to the ASGI route of the same path, which shares decoder, checks and texts.
"""
