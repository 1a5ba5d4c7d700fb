"""The starter file: rules that are useful as they are, with a comment on every choice."""

from __future__ import annotations

from typing import Final

SCHEMA_URL: Final = "./rules.schema.json"
"""Next to the rules file; `headgate rules init` writes it, so editors need no network."""

STARTER: Final = f"""\
# yaml-language-server: $schema={SCHEMA_URL}
#
# Rules for Headgate. Every rule that matches a request applies, and the request passes only if all of them have room; a
# denied request is not charged.
#
#   headgate rules check FILE     finds mistakes
#   headgate rules test FILE      runs the cases at the end
#   headgate rules explain FILE --path /login --method POST
#                                 shows which rules a request meets, and why
version: 1

# What every rule below says unless it says otherwise.
defaults:
  identifier: ip_address

rules:
  # Keep one rule without `match`: whoever finds a way around the others still meets this one.
  - rule_id: every-client
    description: No client may take more than its share.
    rate: 600/minute

  # Guessing passwords must be slow: few tries, and none while nobody can count them.
  - rule_id: login
    description: Tries to log in, by address.
    match:
      path_pattern: /login
      methods: [POST]
    rate: 5/minute
    on_error: closed
    priority: 10

  # Those who logged in are counted by who they are. A burst makes it a token bucket.
  - rule_id: api-per-user
    description: Calls of the API, by user.
    match:
      path_pattern: /api/**
      requires_authentication: true
    identifier: user_id
    rate: 100/minute burst 20
    overrides:
      batch-import: 1000/minute burst 200

  # A rule on trial: it counts and reports, and denies nobody. Watch it, then remove `shadow`.
  - rule_id: search-on-trial
    description: Would 30 searches a minute be enough for everybody?
    match:
      path_pattern: /api/search/*
    identifier: [ip_address, path]
    rate: 30/minute
    shadow: true

# Requests, and what must come of them.
tests:
  - name: a page meets only the rule for everybody
    request: {{method: GET, path: /, ip: 203.0.113.9}}
    matches: [every-client]

  - name: the sixth try to log in is one too many
    request: {{method: POST, path: /login, ip: 203.0.113.9}}
    matches: [login, every-client]
    hits: 6
    allowed: false
    denied_by: login

  - name: a user has an allowance of their own
    request: {{method: GET, path: /api/orders, ip: 203.0.113.9, user_id: "42"}}
    matches: [api-per-user, every-client]
    hits: 20
    allowed: true
"""
