"""MessagingFactory and its senders, receivers and clients, for asyncio.

factory                 MessagingFactory; factory_options its options
clients                 senders, receivers, and the clients of entities
namespace_connection    the connection of a factory to one namespace
namespace_manager       NamespaceManager
call_tracker            whether a factory is open, closed or faulted, and its calls in progress
environment             the SERVICEBUS_* variables
driver_name             the names of drivers in options and commands; imports no driver
"""
