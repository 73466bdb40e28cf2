// A session with Debian's node-redis. Arguments: the server (the path of a socket, or host:port) and its password.
'use strict';

const assert = require('assert');
const { commandOptions, createClient, ErrorReply, WatchError } = require('redis');

const [where, password] = process.argv.slice(2);
let checks = 0;

function check(name, isSo) {
  if (!isSo) throw new Error(`not ok: ${name}`);
  checks += 1;
  console.log(`ok ${name}`);
}

function same(name, found, expected) {
  assert.deepStrictEqual(found, expected, `not ok: ${name}`);
  check(name, true);
}

async function raises(name, kind, text, action) {
  const error = await action().then(() => null, (error) => error);
  if (!(error instanceof kind)) throw new Error(`not ok: ${name}: ${error}`);
  check(name, error.message.includes(text));
}

function options(secret) {
  const [host, port] = where.split(':');
  return { socket: where.startsWith('/') ? { path: where } : { host, port: Number(port) }, password: secret ?? undefined };
}

async function connect(secret = password) {
  const client = createClient(options(secret));
  // Losing a connection is told here as well; without a listener it would end the process.
  client.on('error', () => {});
  await client.connect();
  return client;
}

// The entries that an iterator gives.
async function all(iterator) {
  const found = [];
  for await (const one of iterator) found.push(one);
  return found;
}

const numbered = (name, count) => Array.from({ length: count }, (_, number) => `${name}${number}`);

async function session() {
  // Who may come in.
  const stranger = await connect(null);
  await raises('no password', ErrorReply, 'NOAUTH', () => stranger.get('a'));
  await raises('a wrong password', ErrorReply, 'WRONGPASS', () => stranger.auth({ password: 'wrong' }));
  await stranger.disconnect();
  const client = await connect();
  const buffers = commandOptions({ returnBuffers: true });
  same('ping', await client.ping(), 'PONG');
  same('echo', await client.echo('héllo'), 'héllo');
  await client.clientSetName('node');
  same('the name of a client', await client.clientGetName(), 'node');
  await client.flushDb();
  same('an empty database', await client.dbSize(), 0);

  // Strings.
  const everyByte = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));
  await client.set('bytes', everyByte);
  same('every byte as value', await client.get(buffers, 'bytes'), everyByte);
  await client.set(everyByte, 'v');
  same('every byte as key', await client.get(everyByte), 'v');
  const large = Buffer.concat(Array(4096).fill(everyByte));
  await client.set('large', large);
  check('1 MiB', large.equals(await client.get(buffers, 'large')));
  same('a part of 1 MiB', await client.getRange(buffers, 'large', -256, -1), everyByte);
  same('nothing', await client.get('nothing'), null);
  await client.mSet({ a: '1', b: '2' });
  same('many at once', await client.mGet(['a', 'nothing', 'b']), ['1', null, '2']);
  same('set if it is not there', await client.set('a', '9', { NX: true }), null);
  same('set and get', await client.set('a', '1', { GET: true }), '1');
  same('counting', [await client.incrBy('count', 41), await client.incr('count')], [41, 42]);
  same('counting with decimals', await client.incrByFloat('float', 0.5), '0.5');
  same('append', await client.append('text', 'abc'), 3);
  same('get and delete', [await client.getDel('text'), await client.exists('text')], ['abc', 0]);

  // Expiry.
  await client.set('short', 'v', { PX: 40 });
  const until = Date.now() + 30000;
  while (await client.get('short') !== null && Date.now() < until) await new Promise((wake) => setTimeout(wake, 5));
  same('a key whose time is over', await client.ttl('short'), -2);
  await client.set('long', 'v', { EX: 1000 });
  const left = await client.ttl('long');
  check('a long time', left > 990 && left <= 1000);
  same('persist', [await client.persist('long'), await client.ttl('long')], [true, -1]);

  // Hashes.
  same('hash', await client.hSet('hash', { one: '1', two: '2', '': '\0\r\n' }), 3);
  same('all fields', { ...await client.hGetAll('hash') }, { one: '1', two: '2', '': '\0\r\n' });
  same('some fields', await client.hmGet('hash', ['two', 'none']), ['2', null]);
  same('counting in a hash', await client.hIncrBy('hash', 'one', 4), 5);
  const fields = Object.fromEntries(numbered('field', 1000).map((name) => [name, name]));
  same('a large hash', [await client.hSet('fields', fields), await client.hLen('fields')], [1000, 1000]);
  const pairs = await all(client.hScanIterator('fields', { COUNT: 100 }));
  same('a scan of fields', Object.fromEntries(pairs.map(({ field, value }) => [field, value])), fields);
  same('deleting fields', await client.hDel('fields', numbered('field', 500)), 500);

  // Sorted sets.
  const scored = [{ score: -Infinity, value: 'least' }, { score: 1, value: 'one' }, { score: 2.5, value: 'two' }];
  same('sorted set', await client.zAdd('zset', scored), 3);
  same('in their order', await client.zRange('zset', 0, -1), ['least', 'one', 'two']);
  same('scores', await client.zRangeWithScores('zset', 0, -1), scored.map(({ score, value }) => ({ value, score })));
  same('by score', await client.zRangeByScore('zset', '(1', '+inf'), ['two']);
  same('ranks', [await client.zRevRank('zset', 'two'), await client.zRank('zset', 'none')], [0, null]);
  same('zincrby', await client.zIncrBy('zset', 2, 'one'), 3);
  same('zpopmax', await client.zPopMax('zset'), { value: 'one', score: 3 });
  await client.zAdd('scores', numbered('m', 500).map((value, score) => ({ score, value })));
  same('a scan of scores', (await all(client.zScanIterator('scores'))).length, 500);
  same('a range of many', await client.zRemRangeByRank('scores', 0, 399), 400);

  // Sets.
  same('set', await client.sAdd('set', ['a', 'b', 'c']), 3);
  same('members', (await client.sMembers('set')).sort(), ['a', 'b', 'c']);
  await client.sAdd('other', ['b', 'c', 'd']);
  same('sets together', (await client.sInter(['set', 'other'])).sort(), ['b', 'c']);
  same('smove', [await client.sMove('set', 'other', 'a'), await client.sIsMember('set', 'a')], [true, false]);
  await client.sAdd('members', numbered('m', 1000));
  same('a scan of members', (await all(client.sScanIterator('members'))).sort(), numbered('m', 1000).sort());

  // Lists.
  same('list', [await client.rPush('list', ['a', 'b', 'c']), await client.lPush('list', 'z')], [3, 4]);
  same('elements', await client.lRange('list', 0, -1), ['z', 'a', 'b', 'c']);
  same('ends', [await client.lPop('list'), await client.rPopCount('list', 2)], ['z', ['c', 'b']]);
  same('lmove', [await client.lMove('list', 'moved', 'LEFT', 'RIGHT'), await client.exists('list')], ['a', 0]);
  await client.rPush('elements', numbered('e', 1000));
  same('a large list', [await client.lIndex('elements', 500), await client.lPos('elements', 'e999')], ['e500', 999]);

  // Keys.
  await Promise.all(numbered('scanned:', 500).map((name) => client.set(name, '1')));
  const scanned = await all(client.scanIterator({ MATCH: 'scanned:*', COUNT: 50 }));
  same('a scan of keys', scanned.sort(), numbered('scanned:', 500).sort());
  const types = await Promise.all(['a', 'hash', 'zset', 'set', 'moved', 'none'].map((key) => client.type(key)));
  same('types', types, ['string', 'hash', 'zset', 'set', 'list', 'none']);
  same('rename', [await client.rename('fields', 'renamed'), await client.hLen('renamed')], ['OK', 500]);
  same('unlink', await client.unlink(numbered('scanned:', 500)), 500);

  // Pipelines and transactions. Requests of one turn are sent together.
  const replies = await Promise.all(numbered('p', 1000).flatMap((name) => [client.set(name, name), client.get(name)]));
  same('a pipeline', replies.filter((_, index) => index % 2 === 1), numbered('p', 1000));
  const settled = await Promise.allSettled([client.set('p', '1'), client.lPush('p', '1'), client.get('p')]);
  same('an error in a pipeline', settled.map(({ status }) => status), ['fulfilled', 'rejected', 'fulfilled']);
  same('a transaction', await client.multi().incr('t').hSet('th', 'f', 'v').hGet('th', 'f').exec(), [1, 1, 'v']);
  await client.set('account', '1');
  const conflict = () => client.executeIsolated(async (own) => {
    await own.watch('account');
    await client.set('account', '7');
    return own.multi().set('account', '8').exec();
  });
  await raises('a watched key was written', WatchError, '', conflict);
  same('nothing of it was done', await client.get('account'), '7');
  const alone = await client.executeIsolated(async (own) => {
    await own.watch('account');
    return own.multi().incr('account').exec();
  });
  same('a watched key was not written', alone, [8]);
  const refused = () => client.multi().set('ok', '1').addCommand(['SET', 'refused']).exec();
  await raises('a refused transaction', ErrorReply, '', refused);
  same('nothing of that either', await client.exists('ok'), 0);

  // Errors.
  await raises('the wrong type', ErrorReply, 'WRONGTYPE', () => client.lPush('a', '1'));
  await raises('no number', ErrorReply, 'not an integer', () => client.incr('bytes'));
  await raises('no command', ErrorReply, 'unknown command', () => client.sendCommand(['NOTHING', 'x']));
  await raises('no such key', ErrorReply, 'no such key', () => client.rename('none', 'x'));
  await raises('no syntax', ErrorReply, 'syntax error', () => client.sendCommand(['SET', 'a', '1', 'BAD']));

  // A connection that is killed, and the next one.
  const victim = await connect();
  const number = await victim.clientId();
  const ready = new Promise((again) => victim.once('ready', again));
  same('a client can be killed', await client.sendCommand(['CLIENT', 'KILL', 'ID', String(number)]), 1);
  await ready;
  check('it connects again', await victim.ping() === 'PONG' && await victim.clientId() !== number);
  check('what the server says of itself', (await client.info('server')).includes('redis_version:7.'));
  await victim.quit();
  await client.quit();
}

session().then(() => console.log(`${checks} checks`)).catch((error) => {
  console.error(error);
  process.exit(1);
});
