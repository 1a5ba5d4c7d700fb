"""The live feed: what the dashboard sees, second by second, over a WebSocket.

`frames` says what is going on (with `history` and `verdict`, which are pure), `hub` hands it to everybody who watches,
`tickets` says who may, and `routes` are the addresses.
"""
