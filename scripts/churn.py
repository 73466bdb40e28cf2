#!/usr/bin/env python3
"""churn.py HOST PORT [SECONDS]: sorted sets of 500 members to which twenty come and of which twenty go, time and again.

Prints what it takes to trim one, and to read it, at the begin, in the middle and at the end: a store that steps over what is
gone takes longer and longer. Removes the keys `churn:top` and `churn:least` of the server first.
"""
import random
import socket
import statistics
import sys
import time

HOST, PORT = sys.argv[1], int(sys.argv[2])
SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else 60
SHOWN = 500

server = socket.create_connection((HOST, PORT))
server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
replies = server.makefile("rb")


def reply():
    line = replies.readline()
    if line[:1] == b"-":
        sys.exit(line.decode().strip())
    if line[:1] == b"$":
        return replies.read(int(line[1:]) + 2) if int(line[1:]) >= 0 else None
    return [reply() for _ in range(int(line[1:]))] if line[:1] == b"*" else line


def ask_ms(*words):
    words = [str(word).encode() for word in words]
    begun = time.perf_counter()
    server.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
    reply()
    return (time.perf_counter() - begun) * 1000


def churn(key, trim):
    ask_ms("DEL", key)
    members, trims, begun = 0, [], time.monotonic()
    while time.monotonic() - begun < SECONDS:
        for _ in range(20):
            members += 1
            ask_ms("ZADD", key, random.randrange(1_000_000), f"n{members}")
        trims.append(ask_ms(*trim))
    steps = len(trims)
    parts = [trims[50 : 50 + SHOWN], trims[steps // 2 :][:SHOWN], trims[-SHOWN:]]
    shown = ", ".join(f"{statistics.median(part):.2f}" for part in parts)
    print(f"{key}: {steps} steps, {members} members came; a trim takes {shown} ms (begin, middle, end; medians of {SHOWN})")
    for read in (["ZRANGE", key, 0, 9], ["ZRANGE", key, 0, 9, "REV"], ["ZRANGE", key, 0, -1]):
        print(f"  {' '.join(map(str, read))}: {statistics.median(ask_ms(*read) for _ in range(100)):.2f} ms")


random.seed(1)
churn("churn:top", ["ZREMRANGEBYRANK", "churn:top", 0, -501])
churn("churn:least", ["ZREMRANGEBYRANK", "churn:least", 500, -1])
