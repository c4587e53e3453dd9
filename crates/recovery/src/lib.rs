//! Sans-I/O core that decides how a service and its connections are recovered
