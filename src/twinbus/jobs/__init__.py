"""Files for spark-submit, which takes a file and not a module.

Rule 1: a program that is started as a file finds the files of its directory before the standard
        library: no file here may have the name of a standard module. That is why these files have
        a directory of their own.
"""
