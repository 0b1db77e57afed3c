"""Access control: tokens, scopes, rate limits and the log of refusals.

`principal` is the holder of a token, with roles and scopes. A token is a signed JWT: `tokens` has its claims, the
issuer and the register of issued and revoked tokens, `token_files` the signing keys, `verifier` finds a request's
principal, `browser_session` carries the token in a cookie. `position_codec` hides positions from scoped principals,
`limits` bounds requests, `hosts` checks host names and addresses and sets the security headers. `guard` combines them
all for the application.
"""
