"""Who may ask what, and how much of it.

`holder` says who asks and how far that reaches. A token is a signed JWT: `claims` is what it says, `keys` what it is
signed with, `issuer` makes them and keeps the `register` of what was issued and revoked, `verifier` tells a request's
holder. `appends` says which events a holder may append, `position_codec` how it is shown positions. `limits` says how
much room there is for each, `refusals` notes who was turned away, `exposure` whether an address may be listened on,
`headers` what every answer carries. The application asks the `guard`, which has them all.
"""
