// The published E2B SDK for TypeScript, unmodified, against `exec-server e2b` at $FACADE, in the directory $PLACE.

import assert from 'node:assert/strict'
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { before, test } from 'node:test'

import {
  AuthenticationError, CommandExitError, FileNotFoundError, FilesystemEventType, FileType, InvalidArgumentError,
  NotFoundError, Sandbox, TimeoutError,
} from 'e2b'

const url = process.env.FACADE
const place = process.env.PLACE
let sandbox

before(async () => {
  sandbox = await Sandbox.create({ debug: true, sandboxUrl: url })
})

async function until(condition) {
  for (let tries = 0; tries < 3000; tries++) {
    const found = await condition()
    if (found) return found
    await sleep(20)
  }
  assert.fail('the condition did not become true')
}

test('a command has both streams and its code', async () => {
  let seen = ''
  const result = await sandbox.commands.run('echo out; echo $NAME >&2; pwd', {
    envs: { NAME: 'err' }, cwd: place, onStdout: data => { seen += data },
  })
  assert.deepEqual([result.stdout, result.stderr, result.exitCode], [`out\n${place}\n`, 'err\n', 0])
  assert.equal(seen, result.stdout)
  await assert.rejects(sandbox.commands.run('echo before; exit 7'), error => {
    assert.ok(error instanceof CommandExitError)
    assert.deepEqual([error.exitCode, error.stdout], [7, 'before\n'])
    return true
  })
  const large = await sandbox.commands.run("head -c 5000000 /dev/zero | tr '\\0' x")
  assert.equal(large.stdout.length, 5_000_000)
})

test('a time limit and wrong commands are errors of the SDK', async () => {
  await assert.rejects(sandbox.commands.run('sleep 300', { timeoutMs: 1000 }), TimeoutError)
  await assert.rejects(sandbox.commands.run('true', { cwd: place + '/missing' }), InvalidArgumentError)
  await assert.rejects(sandbox.commands.run('true', { user: 'somebody-else' }), AuthenticationError)
  await assert.rejects(sandbox.commands.connect(4_000_000_000), NotFoundError)
  assert.equal(await sandbox.commands.kill(4_000_000_000), false)
})

test('a background command takes input, is listed, left and found again', async () => {
  const command = await sandbox.commands.run('cat; echo end', { background: true, stdin: true })
  assert.ok((await sandbox.commands.list()).some(one => one.pid === command.pid))
  await sandbox.commands.sendStdin(command.pid, 'one\n')
  await command.disconnect()
  const again = await sandbox.commands.connect(command.pid)
  await sandbox.commands.sendStdin(command.pid, 'two\n')
  await sandbox.commands.closeStdin(command.pid)
  const result = await again.wait()
  assert.ok(result.stdout.endsWith('two\nend\n'), result.stdout)
  const killed = await sandbox.commands.run('sleep 300', { background: true })
  assert.equal(await killed.kill(), true)
  await assert.rejects(killed.wait(), error => error.error === 'signal: killed')
})

test('a terminal has a size that changes', async () => {
  const decoder = new TextDecoder()
  let seen = ''
  const pty = await sandbox.pty.create({ rows: 30, cols: 100, onData: data => { seen += decoder.decode(data) } })
  const encode = text => new TextEncoder().encode(text)
  await sandbox.pty.sendInput(pty.pid, encode('stty size\n'))
  await until(() => seen.includes('30 100\r\n'))
  await sandbox.pty.resize(pty.pid, { rows: 11, cols: 44 })
  await sandbox.pty.sendInput(pty.pid, encode('stty size; exit 3\n'))
  await assert.rejects(pty.wait(), error => error.exitCode === 3)
  assert.ok(seen.includes('11 44\r\n'))
})

test('files are written, read, described, moved and removed', async () => {
  const path = `${place}/new/dir/ö b.txt`
  const info = await sandbox.files.write(path, 'text ö')
  assert.deepEqual([info.path, info.name, info.type], [path, 'ö b.txt', FileType.FILE])
  assert.equal(await sandbox.files.read(path), 'text ö')
  const bytes = new Uint8Array(1_000_000).map((_, index) => index % 256)
  await sandbox.files.write(place + '/binary', bytes.buffer)
  assert.deepEqual(await sandbox.files.read(place + '/binary', { format: 'bytes' }), bytes)
  const several = await sandbox.files.write([0, 1, 2].map(n => ({ path: `${place}/m/${n}`, data: String(n) })))
  assert.deepEqual(several.map(one => one.path), [0, 1, 2].map(n => `${place}/m/${n}`))
  assert.deepEqual((await sandbox.files.list(place + '/m')).map(one => one.name).sort(), ['0', '1', '2'])
  const found = await sandbox.files.getInfo(place + '/binary')
  assert.deepEqual([Number(found.size), found.type], [1_000_000, FileType.FILE])
  assert.equal(await sandbox.files.makeDir(place + '/made'), true)
  assert.equal(await sandbox.files.makeDir(place + '/made'), false)
  await sandbox.files.rename(place + '/binary', place + '/made/moved')
  assert.ok(existsSync(place + '/made/moved'))
  await sandbox.files.remove(place + '/made')
  assert.equal(await sandbox.files.exists(place + '/made'), false)
  await assert.rejects(sandbox.files.read(place + '/missing'), FileNotFoundError)
  await assert.rejects(sandbox.files.read(place), InvalidArgumentError)
})

test('a watch reports what happens', async () => {
  mkdirSync(place + '/watched/sub', { recursive: true })
  const events = []
  const watch = await sandbox.files.watchDir(place + '/watched', event => { events.push(event) }, { recursive: true })
  const has = (type, name) => until(() => events.some(one => one.type === type && one.name === name))
  await sandbox.files.write(place + '/watched/sub/file', 'x')
  await has(FilesystemEventType.CREATE, 'sub/file')
  writeFileSync(place + '/watched/sub/file', 'more')
  await has(FilesystemEventType.WRITE, 'sub/file')
  await sandbox.files.rename(place + '/watched/sub/file', place + '/watched/name')
  await has(FilesystemEventType.RENAME, 'sub/file')
  await sandbox.files.remove(place + '/watched/name')
  await has(FilesystemEventType.REMOVE, 'name')
  await watch.stop()
  await assert.rejects(sandbox.files.watchDir(place + '/missing', () => {}), FileNotFoundError)
})

test('sandboxes of the control plane are created, listed and killed', async () => {
  const options = { sandboxUrl: url, apiUrl: url, apiKey: 'any' }
  const one = await Sandbox.create({ ...options, metadata: { job: 'ts' }, envs: { COLOUR: 'red' }, timeoutMs: 60_000 })
  assert.equal((await one.commands.run('echo $COLOUR')).stdout, 'red\n')
  const pages = Sandbox.list({ ...options, query: { metadata: { job: 'ts' } } })
  assert.deepEqual((await pages.nextItems()).map(item => item.sandboxId), [one.sandboxId])
  assert.equal((await one.getInfo()).metadata.job, 'ts')
  await one.setTimeout(120_000)
  assert.equal(await one.isRunning(), true)
  await one.commands.run(`echo $$ > ${place}/pid; exec sleep 300`, { background: true })
  await until(() => existsSync(place + '/pid') && readFileSync(place + '/pid', 'utf8'))
  assert.equal(await one.kill(), true)
  assert.equal(await one.isRunning(), false)
  await until(() => !existsSync(`/proc/${readFileSync(place + '/pid', 'utf8').trim()}/cmdline`))
})
