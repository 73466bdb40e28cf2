//! The bytes between a client and a server: requests are read, replies are written. Nothing here knows a command.
