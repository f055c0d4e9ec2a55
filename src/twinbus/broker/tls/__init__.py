"""TLS for every port of a broker: a local authority, and the certificate that the doors show.

keeper.py      Keeper: where the certificate is kept, when it is made anew, the server's context
authority.py   makes authorities and certificates; the only file that needs ``cryptography``
"""
