"""``twinbus syphon``.

commands        the commands and their options; exit code 3 if messages stay
run_on_spark    a syphon on Spark; spark_session its session
run_local       a syphon in this process, without Spark
spool           the backlog of an embedded namespace, from its directory
summary         finding the backlog queues; progress, result and exit code
"""
