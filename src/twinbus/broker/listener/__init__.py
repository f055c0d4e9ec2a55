"""The listening ports of a broker, and TLS for each of them.

listeners                listening ports, on which AMQP, HTTP and TLS are told apart
certificates             where the certificate is kept, when it is made anew, the server's context
certificate_authority    makes authorities and certificates; the only file that needs
``cryptography`` tarpit                   evicted connections that stay open in a flood
"""
