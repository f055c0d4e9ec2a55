"""MessagingFactory and what it makes, for asyncio.

factory                 MessagingFactory; factory_options what can be chosen
clients                 senders, receivers, and the clients of entities
namespace_connection    the connection of a factory to one namespace
namespace_manager       NamespaceManager
call_tracker            open, closed or faulted, and the calls in progress
environment             the SERVICEBUS_* variables
driver_name             the names of drivers in options and commands; loads none of them
"""
