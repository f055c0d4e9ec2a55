"""What Spark requires: Java, a session that starts quickly, a Python for its workers.

session          a local session
tuning           settings for small inputs
java             finds a Java, or uses the one from pip
warm_up          loads classes and modules in the background while Spark starts
class_archive    Spark's classes, kept for the next start; prepare writes the archive
cache            the cache directory
worker_python    the Python of Spark's workers
worker_check     checks whether that Python can import twinbus
"""
