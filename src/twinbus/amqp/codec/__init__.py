"""The types of AMQP: values to bytes, and back.

types, primitives        the types that Python lacks; bounds, sizes and text checks
decode, skip, encode     single values
composites               described lists as dataclasses; fixed_fields a fast path for small ones
"""
