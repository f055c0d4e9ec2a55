"""The listening ports of a broker, and TLS for each of them.

listeners                listening ports; detection of AMQP, HTTP and TLS
certificates             storage and renewal of the certificate, the TLS context
certificate_authority    creates authorities and certificates; only this needs ``cryptography``
tarpit                   evicted connections that stay open during a flood
"""
