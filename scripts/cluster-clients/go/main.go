// A session of go-redis against a cluster of several servers. What it prints and reads is told in cluster-clients.sh.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

const (
	keyCount = 300
	patience = 60 * time.Second
)

var (
	ctx    = context.Background()
	input  = bufio.NewReader(os.Stdin)
	checks = 0
)

func fail(format string, arguments ...any) {
	fmt.Fprintf(os.Stderr, "not ok: "+format+"\n", arguments...)
	os.Exit(1)
}

func check(name string, isSo bool) {
	if !isSo {
		fail("%s", name)
	}
	checks++
	fmt.Printf("ok %s\n", name)
}

func must[T any](value T, err error) T {
	if err != nil {
		fail("after %d checks: %v", checks, err)
	}
	return value
}

func await(what string) []string {
	fmt.Printf("await %s\n", what)
	return strings.Fields(must(input.ReadString('\n')))
}

func valueOf(key string) string { return "value of " + key }

func connect(change func(*redis.ClusterOptions)) *redis.ClusterClient {
	options := &redis.ClusterOptions{Addrs: []string{os.Args[1]}, Password: os.Args[2], DialTimeout: 3 * time.Second}
	if len(os.Args) > 3 {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(must(os.ReadFile(os.Args[3]))) {
			fail("%s has no certificate", os.Args[3])
		}
		options.TLSConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	change(options)
	return redis.NewClusterClient(options)
}

// untilRead reads all keys. The library may first have to see that connections are gone.
func untilRead(client *redis.ClusterClient, keys []string, what string) {
	began := time.Now()
	for _, key := range keys {
		value, err := client.Get(ctx, key).Result()
		for err != nil {
			if time.Since(began) > patience {
				fail("%s: %s: %v", what, key, err)
			}
			time.Sleep(100 * time.Millisecond)
			value, err = client.Get(ctx, key).Result()
		}
		if value != valueOf(key) {
			fail("%s: %s is %q", what, key, value)
		}
	}
	check(what, len(keys) > 0)
}

// onAll gathers what all servers say.
func onAll[T any](client *redis.ClusterClient, ask func(*redis.Client) (T, error)) []T {
	var lock sync.Mutex
	var all []T
	err := client.ForEachMaster(ctx, func(_ context.Context, server *redis.Client) error {
		one, err := ask(server)
		lock.Lock()
		defer lock.Unlock()
		all = append(all, one)
		return err
	})
	return must(all, err)
}

func sameSet(some, others []string) bool {
	some, others = append([]string(nil), some...), append([]string(nil), others...)
	sort.Strings(some)
	sort.Strings(others)
	return strings.Join(some, " ") == strings.Join(others, " ")
}

func main() {
	logging.Disable()
	fmt.Printf("version %s\n", redis.Version())
	var keys []string
	for number := range keyCount {
		keys = append(keys, fmt.Sprintf("key:%d", number))
	}
	client := connect(func(*redis.ClusterOptions) {})
	pongs := onAll(client, func(server *redis.Client) (string, error) { return server.Ping(ctx).Result() })
	check("three servers", strings.Join(pongs, " ") == "PONG PONG PONG")
	onAll(client, func(server *redis.Client) (string, error) { return server.FlushAll(ctx).Result() })
	for _, key := range keys {
		must(client.Set(ctx, key, valueOf(key), 0).Result())
	}
	for _, key := range keys {
		if must(client.Get(ctx, key).Result()) != valueOf(key) {
			fail("%s is another", key)
		}
	}
	check("set and get", true)
	sizes := onAll(client, func(server *redis.Client) (int64, error) { return server.DBSize(ctx).Result() })
	sum, least := int64(0), int64(keyCount)
	for _, size := range sizes {
		sum, least = sum+size, min(least, size)
	}
	check("over all servers", sum == keyCount && least > keyCount/10)
	check("counted by the library", must(client.DBSize(ctx).Result()) == keyCount)
	var scanned []string
	for _, some := range onAll(client, func(server *redis.Client) (some []string, err error) {
		all := server.Scan(ctx, 0, "key:*", 20).Iterator()
		for all.Next(ctx) {
			some = append(some, all.Val())
		}
		return some, all.Err()
	}) {
		scanned = append(scanned, some...)
	}
	check("scan", sameSet(scanned, keys))
	counts := must(client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for number := range 200 {
			pipe.Incr(ctx, fmt.Sprintf("counter:%d", number))
		}
		return nil
	}))
	right := 0
	for _, count := range counts {
		if count.(*redis.IntCmd).Val() == 1 {
			right++
		}
	}
	check("a pipeline over all servers", right == 200)
	must(client.MSet(ctx, "{tag}a", 1, "{tag}b", 2).Result())
	check("several keys of a tag", fmt.Sprint(must(client.MGet(ctx, "{tag}a", "{tag}b").Result())) == "[1 2]")
	done := must(client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, "{tag}a", 5, 0)
		pipe.Incr(ctx, "{tag}a")
		return nil
	}))
	check("a transaction", len(done) == 2 && done[1].(*redis.IntCmd).Val() == 6)
	watched := client.Watch(ctx, func(tx *redis.Tx) error {
		_, err := tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			// Somebody else meanwhile.
			must(client.Incr(ctx, "{tag}a").Result())
			pipe.Set(ctx, "{tag}a", 0, 0)
			return nil
		})
		return err
	}, "{tag}a")
	check("a transaction that somebody else was before", errors.Is(watched, redis.TxFailedErr))
	_, crossed := client.SInter(ctx, "a", "b").Result()
	check("two slots", crossed != nil && strings.HasPrefix(crossed.Error(), "CROSSSLOT"))
	for _, way := range []struct {
		name   string
		change func(*redis.ClusterOptions)
	}{
		{"reads from replicas, of which there are none", func(options *redis.ClusterOptions) { options.ReadOnly = true }},
		{"by latency", func(options *redis.ClusterOptions) { options.RouteByLatency = true }},
		{"at random", func(options *redis.ClusterOptions) { options.RouteRandomly = true }},
		{"by version 2 of the protocol", func(options *redis.ClusterOptions) { options.Protocol = 2 }},
	} {
		reader := connect(way.change)
		untilRead(reader, keys, way.name)
		reader.Close()
	}

	await("restart")
	untilRead(client, keys, "all keys after a restart")
	left := await("kill")
	check("some are left", len(left) > keyCount/10 && len(left) < keyCount)
	untilRead(client, left, "keys of the others after the leader's death")
	there := map[string]bool{}
	for _, key := range left {
		there[key] = true
		must(client.Set(ctx, key, valueOf(key), 0).Result())
	}
	for _, key := range keys {
		if !there[key] {
			_, err := client.Get(ctx, key).Result()
			check("a key that is away", err != nil && !errors.Is(err, redis.Nil))
			break
		}
	}
	await("start")
	untilRead(client, keys, "all keys when it is back")
	untilRead(connect(func(*redis.ClusterOptions) {}), keys, "and for who comes anew")
	fmt.Printf("%d checks\n", checks)
}
