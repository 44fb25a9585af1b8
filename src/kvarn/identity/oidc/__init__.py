"""Sign-in of people at an identity provider: OpenID Connect's authorization code flow, with PKCE.

browser   /console/api/oidc/start      a cookie, sealed: state, nonce, verifier, where to go on
          provider's page              they sign in there
          /console/api/oidc/callback   the code, and the same state
gateway   provider                     code + verifier -> ID token: its signature, times, audience, nonce are checked
          database                     the user with that address, their role -> a session
"""
