"""Service Bus in Spark: the connector for everybody, and the syphon.

The data sources need the extra ``spark``: ``pip install 'twinbus[spark]'``.
"""
