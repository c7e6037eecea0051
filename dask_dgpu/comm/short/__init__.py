"""Short messages between ranks in different processes, over sockets of their own.

gloo wakes its thread for connections, and that one the waiting thread, for each message. Here the
posting thread writes to the socket and the waiting thread reads it::

    send      header and data -> kernel; returns at once
    receive   note the buffer, or take the data if they are there already
    wait      read whatever arrives, until one's own message is there

If several threads wait for one peer, one of them reads for all.
"""
