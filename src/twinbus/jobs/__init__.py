"""Files for spark-submit, which takes a file and not a module.

Rule 1: a program that is started as a file finds its neighbours before the standard library: no
        file here may have the name of a module of Python's own. That is why they stand alone.
"""
