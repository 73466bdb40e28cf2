/* A session with Debian's libhiredis. Arguments: the server (the path of a socket, or host:port) and its password. */

#include <hiredis/hiredis.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *where, *password;
static int checks;

static void check(const char *name, int is_so) {
    if (!is_so) {
        fprintf(stderr, "not ok: %s\n", name);
        exit(1);
    }
    checks++;
    printf("ok %s\n", name);
}

static redisContext *open_connection(void) {
    redisContext *context;
    if (where[0] == '/') {
        context = redisConnectUnix(where);
    } else {
        char host[64];
        const char *colon = strrchr(where, ':');
        snprintf(host, sizeof host, "%.*s", (int)(colon - where), where);
        context = redisConnect(host, atoi(colon + 1));
    }
    if (!context || context->err) {
        fprintf(stderr, "cannot connect to %s: %s\n", where, context ? context->errstr : "no memory");
        exit(1);
    }
    struct timeval patience = {30, 0};
    redisSetTimeout(context, patience);
    return context;
}

/* The reply; it is freed when the next one is asked for. */
static redisReply *ask(redisContext *context, const char *format, ...) {
    static redisReply *last;
    va_list arguments;
    if (last) freeReplyObject(last);
    va_start(arguments, format);
    last = redisvCommand(context, format, arguments);
    va_end(arguments);
    if (!last) {
        fprintf(stderr, "no reply to %s: %s\n", format, context->errstr);
        exit(1);
    }
    return last;
}

static redisContext *connect_and_authenticate(void) {
    redisContext *context = open_connection();
    ask(context, "AUTH %s", password);
    return context;
}

static int is_text(const redisReply *reply, const char *text) {
    return (reply->type == REDIS_REPLY_STRING || reply->type == REDIS_REPLY_STATUS) && (size_t)reply->len == strlen(text) &&
           !memcmp(reply->str, text, reply->len);
}

static int is_number(const redisReply *reply, long long number) {
    return reply->type == REDIS_REPLY_INTEGER && reply->integer == number;
}

static int is_error(const redisReply *reply, const char *text) {
    return reply->type == REDIS_REPLY_ERROR && strstr(reply->str, text) != NULL;
}

static int is_nothing(const redisReply *reply) { return reply->type == REDIS_REPLY_NIL; }

/* Whether it is an array of these texts, which end with NULL. */
static int are_texts(const redisReply *reply, ...) {
    va_list texts;
    const char *text;
    size_t count = 0;
    int is_so = reply->type == REDIS_REPLY_ARRAY;
    va_start(texts, reply);
    while (is_so && (text = va_arg(texts, const char *))) {
        is_so = count < reply->elements && is_text(reply->element[count], text);
        count++;
    }
    va_end(texts);
    return is_so && count == reply->elements;
}

/* Goes through a scan to its end: how many entries it gave. */
static long scan(redisContext *context, const char *command) {
    char cursor[32] = "0";
    long found = 0;
    do {
        char request[128];
        snprintf(request, sizeof request, command, cursor);
        redisReply *reply = ask(context, request);
        if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2) return -1;
        snprintf(cursor, sizeof cursor, "%s", reply->element[0]->str);
        found += (long)reply->element[1]->elements;
    } while (strcmp(cursor, "0"));
    return found;
}

static void strings(redisContext *context) {
    static char large[1 << 20];
    char every_byte[256];
    for (int byte = 0; byte < 256; byte++) every_byte[byte] = (char)byte;
    for (size_t at = 0; at < sizeof large; at++) large[at] = (char)(at * 31 + at / 251);
    ask(context, "SET bytes %b", every_byte, sizeof every_byte);
    redisReply *reply = ask(context, "GET bytes");
    check("every byte as value", reply->len == 256 && !memcmp(reply->str, every_byte, 256));
    ask(context, "SET %b v", every_byte, sizeof every_byte);
    check("every byte as key", is_text(ask(context, "GET %b", every_byte, sizeof every_byte), "v"));
    check("1 MiB is set", is_text(ask(context, "SET large %b", large, sizeof large), "OK"));
    reply = ask(context, "GET large");
    check("1 MiB", (size_t)reply->len == sizeof large && !memcmp(reply->str, large, sizeof large));
    reply = ask(context, "GETRANGE large -256 -1");
    check("a part of 1 MiB", reply->len == 256 && !memcmp(reply->str, large + sizeof large - 256, 256));
    check("an empty value", is_text(ask(context, "SET empty %b", "", (size_t)0), "OK") && is_text(ask(context, "GET empty"), ""));
    check("nothing", is_nothing(ask(context, "GET nothing")));
    ask(context, "MSET a 1 b 2");
    check("many at once", are_texts(ask(context, "MGET a b"), "1", "2", NULL));
    check("set if it is not there", is_nothing(ask(context, "SET a 9 NX")));
    check("counting", is_number(ask(context, "INCRBY count 41"), 41) && is_number(ask(context, "INCR count"), 42));
    check("the greatest number", is_text(ask(context, "SET most 9223372036854775806"), "OK") &&
                                     is_number(ask(context, "INCR most"), 9223372036854775807LL) &&
                                     is_error(ask(context, "INCR most"), "overflow"));
    check("counting with decimals", is_text(ask(context, "INCRBYFLOAT float 0.5"), "0.5"));
    check("append", is_number(ask(context, "APPEND text abc"), 3));
}

static void expiry(redisContext *context) {
    ask(context, "SET short v PX 40");
    time_t until = time(NULL) + 30;
    while (!is_nothing(ask(context, "GET short")) && time(NULL) < until) usleep(5000);
    check("a key whose time is over", is_number(ask(context, "TTL short"), -2));
    ask(context, "SET long v EX 1000");
    long long left = ask(context, "TTL long")->integer;
    check("a long time", left > 990 && left <= 1000);
    check("persist", is_number(ask(context, "PERSIST long"), 1) && is_number(ask(context, "TTL long"), -1));
}

static void collections(redisContext *context) {
    check("hash", is_number(ask(context, "HSET hash one 1 two 2"), 2));
    check("all fields", are_texts(ask(context, "HGETALL hash"), "one", "1", "two", "2", NULL));
    check("counting in a hash", is_number(ask(context, "HINCRBY hash one 4"), 5));
    check("sorted set", is_number(ask(context, "ZADD zset 1 one 2.5 two -inf least"), 3));
    check("in their order", are_texts(ask(context, "ZRANGE zset 0 -1"), "least", "one", "two", NULL));
    check("scores", are_texts(ask(context, "ZRANGE zset 1 -1 WITHSCORES"), "one", "1", "two", "2.5", NULL));
    check("ranks", is_number(ask(context, "ZREVRANK zset two"), 0) && is_nothing(ask(context, "ZRANK zset none")));
    check("an infinite score", is_text(ask(context, "ZSCORE zset least"), "-inf"));
    check("set", is_number(ask(context, "SADD set a b c"), 3) && is_number(ask(context, "SCARD set"), 3));
    ask(context, "SADD other c d");
    check("sets together", are_texts(ask(context, "SINTER set other"), "c", NULL));
    check("smove", is_number(ask(context, "SMOVE set other a"), 1) && is_number(ask(context, "SISMEMBER set a"), 0));
    check("list", is_number(ask(context, "RPUSH list a b c"), 3) && is_number(ask(context, "LPUSH list z"), 4));
    check("elements", are_texts(ask(context, "LRANGE list 0 -1"), "z", "a", "b", "c", NULL));
    check("ends", is_text(ask(context, "LPOP list"), "z") && are_texts(ask(context, "RPOP list 2"), "c", "b", NULL));
    check("lmove", is_text(ask(context, "LMOVE list moved LEFT RIGHT"), "a") && is_number(ask(context, "EXISTS list"), 0));
}

static void pipelines(redisContext *context) {
    redisReply *reply;
    for (int number = 0; number < 1000; number++) {
        redisAppendCommand(context, "HSET fields field%d %d", number, number);
        redisAppendCommand(context, "SADD members %d", number);
        redisAppendCommand(context, "ZADD scores %d m%d", number, number);
        redisAppendCommand(context, "RPUSH elements %d", number);
        redisAppendCommand(context, "SET scanned:%d %d", number, number);
        redisAppendCommand(context, "GET scanned:%d", number);
    }
    int right = 0;
    for (int number = 0; number < 1000; number++) {
        char text[16];
        snprintf(text, sizeof text, "%d", number);
        for (int request = 0; request < 6; request++) {
            if (redisGetReply(context, (void **)&reply) != REDIS_OK) {
                fprintf(stderr, "%s\n", context->errstr);
                exit(1);
            }
            switch (request) {
                case 3: right += is_number(reply, number + 1); break;
                case 4: right += is_text(reply, "OK"); break;
                case 5: right += is_text(reply, text); break;
                default: right += is_number(reply, 1);
            }
            freeReplyObject(reply);
        }
    }
    check("a pipeline", right == 6000);
    check("a scan of fields", scan(context, "HSCAN fields %s COUNT 100") == 2000);
    check("a scan of members", scan(context, "SSCAN members %s COUNT 100") == 1000);
    check("a scan of scores", scan(context, "ZSCAN scores %s COUNT 100") == 2000);
    check("a scan of keys", scan(context, "SCAN %s MATCH scanned:* COUNT 100") == 1000);
    check("a large list", is_text(ask(context, "LINDEX elements 500"), "500") && is_number(ask(context, "LPOS elements 999"), 999));
    check("a range of many", is_number(ask(context, "ZREMRANGEBYRANK scores 0 899"), 900) && is_number(ask(context, "ZCARD scores"), 100));
    redisAppendCommand(context, "SET p 1");
    redisAppendCommand(context, "LPUSH p 1");
    redisAppendCommand(context, "GET p");
    int types[3];
    for (int request = 0; request < 3; request++) {
        if (redisGetReply(context, (void **)&reply) != REDIS_OK) exit(1);
        types[request] = reply->type;
        freeReplyObject(reply);
    }
    check("an error in a pipeline", types[0] == REDIS_REPLY_STATUS && types[1] == REDIS_REPLY_ERROR && types[2] == REDIS_REPLY_STRING);
}

static void transactions(redisContext *context, redisContext *other) {
    ask(context, "MULTI");
    check("it is queued", is_text(ask(context, "INCR t"), "QUEUED"));
    ask(context, "LPUSH t 1");
    ask(context, "GET t");
    check("nobody sees it before", is_nothing(ask(other, "GET t")));
    redisReply *reply = ask(context, "EXEC");
    check("a transaction", reply->type == REDIS_REPLY_ARRAY && reply->elements == 3 && is_number(reply->element[0], 1) &&
                               is_error(reply->element[1], "WRONGTYPE") && is_text(reply->element[2], "1"));
    ask(context, "WATCH account");
    ask(other, "SET account 7");
    ask(context, "MULTI");
    ask(context, "SET account 8");
    check("a watched key was written", is_nothing(ask(context, "EXEC")));
    check("nothing of it was done", is_text(ask(context, "GET account"), "7"));
    ask(context, "WATCH account");
    ask(context, "MULTI");
    ask(context, "INCR account");
    reply = ask(context, "EXEC");
    check("a watched key was not written", reply->type == REDIS_REPLY_ARRAY && is_number(reply->element[0], 8));
    ask(context, "MULTI");
    ask(context, "SET refused");
    check("a refused transaction", is_error(ask(context, "EXEC"), "EXECABORT"));
    ask(context, "MULTI");
    ask(context, "SET ok 1");
    check("discard", is_text(ask(context, "DISCARD"), "OK") && is_number(ask(context, "EXISTS ok"), 0));
}

static void kills(redisContext *context) {
    redisContext *victim = connect_and_authenticate();
    long long number = ask(victim, "CLIENT ID")->integer;
    check("a client can be killed", is_number(ask(context, "CLIENT KILL ID %lld", number), 1));
    redisReply *reply = redisCommand(victim, "PING");
    check("it notices", reply == NULL && (victim->err == REDIS_ERR_EOF || victim->err == REDIS_ERR_IO));
    check("it connects again", redisReconnect(victim) == REDIS_OK);
    check("it has to say who it is again", is_error(ask(victim, "PING"), "NOAUTH"));
    check("and may then go on", is_text(ask(victim, "AUTH default %s", password), "OK") && is_text(ask(victim, "PING"), "PONG"));
    check("as somebody else", ask(victim, "CLIENT ID")->integer > number);
    redisFree(victim);
}

#if HIREDIS_MAJOR >= 1
static void third_version(redisContext *context) {
    check("HELLO 3", ask(context, "HELLO 3")->type == REDIS_REPLY_MAP);
    redisReply *reply = ask(context, "HGETALL hash");
    check("a map", reply->type == REDIS_REPLY_MAP && reply->elements == 4);
    check("a set", ask(context, "SMEMBERS set")->type == REDIS_REPLY_SET);
    reply = ask(context, "ZSCORE zset two");
    check("a double", reply->type == REDIS_REPLY_DOUBLE && reply->dval == 2.5);
    reply = ask(context, "ZSCORE zset least");
    check("an infinite double", reply->type == REDIS_REPLY_DOUBLE && isinf(reply->dval));
    check("null", is_nothing(ask(context, "GET nothing")));
    ask(context, "HELLO 2");
}
#else
static void third_version(redisContext *context) { (void)context; }
#endif

int main(int count, char **arguments) {
    if (count != 3) return 2;
    where = arguments[1];
    password = arguments[2];
    /* To write to a connection that was killed is an error, not the end. */
    signal(SIGPIPE, SIG_IGN);
    redisContext *context = open_connection();
    check("no password", is_error(ask(context, "GET a"), "NOAUTH"));
    check("a wrong password", is_error(ask(context, "AUTH wrong"), "WRONGPASS"));
    check("the password", is_text(ask(context, "AUTH %s", password), "OK"));
    redisContext *other = connect_and_authenticate();
    check("the name of a client", is_text(ask(context, "CLIENT SETNAME c"), "OK") && is_text(ask(context, "CLIENT GETNAME"), "c"));
    ask(context, "FLUSHDB");
    check("an empty database", is_number(ask(context, "DBSIZE"), 0));
    strings(context);
    expiry(context);
    collections(context);
    pipelines(context);
    transactions(context, other);
    check("the wrong type", is_error(ask(context, "LPUSH a 1"), "WRONGTYPE"));
    check("no number", is_error(ask(context, "INCR bytes"), "not an integer"));
    check("no command", is_error(ask(context, "NOTHING x"), "unknown command"));
    check("no such key", is_error(ask(context, "RENAME none x"), "no such key"));
    check("no syntax", is_error(ask(context, "SET a 1 BAD"), "syntax error"));
    kills(context);
    third_version(context);
    redisFree(other);
    redisFree(context);
    printf("%d checks\n", checks);
    return 0;
}
