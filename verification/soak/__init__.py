"""Many entities, many connections, mixed load, minutes long: does anything grow?

    __main__   starts the broker and the load, watches, drains, judges
    plan       which entities there are and who does what with them
    client     a lean asyncio client on our own AMQP engine
    roles      senders, receivers, session receivers, visitors
    watch      samples of memory and descriptors, and the verdict over them

Rule 1: the load leaves nothing behind, so that a broker that grows has only itself to blame.
Rule 2: every message is counted; a message that was acknowledged and not received is a failure.
"""
