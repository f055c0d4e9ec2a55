"""Benchmarks of the broker next to RabbitMQ, measured in the same run on the same disk.

    __main__     which benchmarks run, in which order, and where the figures go
    scenarios    benchmarks under load: rates, latency, drain
    systems      the two brokers behind one port: start, queues, publishers, counts
      rabbitmq     a RabbitMQ node of our own        rabbitmq_wire   AMQP 0-9-1 client
      twinbus_node our broker in its own process     wire, wire_links, wire_values   AMQP 1.0 client
    run          rounds in turn, medians, filling a queue
    standing     benchmarks with a standing queue: memory, restart
    pairing      the paired client next to the SDK it stands in for, and how fast it fails over
    coming_home  our mover next to RabbitMQ's Shovel (shovel)
    drain        the syphon on Spark next to Shovel and a loop by hand (hand_loop)
      drain_cold   its start from nothing                drain_cost     CPU time of a message
      drain_site   two brokers, backlog, destinations    drain_movers   the programs that move
    process_tree what a program and all that it started use of the processors
    sending      the publish loops (windowed, paced), blind to the protocol
    workers      publishers in processes of their own, started at the same instant
    processes    ports, CPU seconds, resident memory, orderly and sudden ends
    report       a figure, the table, latest.json

Rule 1: both brokers are driven by equally lean clients, so that the brokers are what is measured.
Rule 2: every run is counted afterwards; a figure whose messages are not all there is an error.
Rule 3: the broker is measured by clients that do not import twinbus; pairing, coming_home and
        drain measure twinbus's own clients, which they import.
"""
