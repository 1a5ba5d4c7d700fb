"""Access control and auditing: tokens, roles, TLS, the audit log."""
