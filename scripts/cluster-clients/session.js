// What the sessions of the clients for Node have in common. What is printed and read is told in cluster-clients.sh.
'use strict';

const fs = require('fs');
const readline = require('readline');

const KEYS = 300;
const PATIENCE_MS = 60_000;

const [where, password, authority] = process.argv.slice(2);
const colon = where.lastIndexOf(':');
const [host, port] = [where.slice(0, colon), Number(where.slice(colon + 1))];
const tls = authority ? { ca: fs.readFileSync(authority) } : undefined;
const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const keys = Array.from({ length: KEYS }, (_, number) => `key:${number}`);
let checks = 0;

const valueOf = (key) => `value of ${key}`;
const sleep = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

function fail(what) {
  console.error(`not ok: ${what}`);
  process.exit(1);
}

function check(name, isSo) {
  if (!isSo) fail(name);
  checks += 1;
  console.log(`ok ${name}`);
}

async function waitFor(what) {
  console.log(`await ${what}`);
  return (await lines.next()).value.split(' ');
}

// A library may first have to see that connections are gone.
async function untilRead(get, wanted, what) {
  const began = Date.now();
  for (const key of wanted) {
    let value;
    while (value === undefined) {
      try {
        value = await get(key);
      } catch (error) {
        if (Date.now() - began > PATIENCE_MS) fail(`${what}: ${key}: ${error.stack}`);
        await sleep(100);
      }
    }
    if (value !== valueOf(key)) fail(`${what}: ${key} is ${value}`);
  }
  check(what, wanted.length > 0);
}

// What it ends with; an error that says nothing for so long counts as well.
async function refusal(promise, ms) {
  const late = new Promise((resolve) => { setTimeout(() => resolve(`no answer in ${ms} ms`), ms).unref(); });
  return Promise.race([promise.then(() => '', (error) => error.message || String(error)), late]);
}

// A restart, the death of the leader and its return, as a client that may get and set sees them.
async function faults(get, set, getAnew) {
  await waitFor('restart');
  await untilRead(get, keys, 'all keys after a restart');
  const left = await waitFor('kill');
  check('some are left', left.length > KEYS / 10 && left.length < KEYS);
  await untilRead(get, left, "keys of the others after the leader's death");
  for (const key of left) await set(key, valueOf(key));
  check('and written', true);
  const away = keys.find((key) => !left.includes(key));
  check('a key that is away', (await refusal(get(away), 2000)) !== '');
  await untilRead(get, left, 'keys of the others are not held up by it');
  await waitFor('start');
  await untilRead(get, keys, 'all keys when it is back');
  await untilRead(getAnew, keys, 'and for who comes anew');
}

function end() {
  console.log(`${checks} checks`);
  process.exit(0);
}

function run(session) {
  session().then(end, (error) => {
    console.error(error);
    process.exit(1);
  });
}

module.exports = { KEYS, check, faults, host, keys, password, port, refusal, run, tls, valueOf };
