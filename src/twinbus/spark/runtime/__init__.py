"""What Spark needs around it: Java, a session that starts quickly, Python for its workers.

session          a local session; tuning for small inputs
java             the Java that is found, or the one from pip
warm_up          work on the other core meanwhile; class_archive, cache what is kept, prepare
worker_python    the Python of Spark's workers; worker_check whether it has twinbus
"""
