-- append-if: the one way to write to a job's log. All checks come before the first write; the event and its
-- companions are then written together, and the sequence number is given here.
--
-- KEYS  log head spans audio carry lease:talker lease:acoustic        (one slot)
-- ARGV  1 kind      create | span | terminal | codes | chunk | final | note
--       2 token     the writer's lease token
--       3 role      whose lease the token must be: talker | acoustic; '' where the event needs no lease
--       4 identity  type + index, else type + token
--       5 digest    of the event's data
--       6 index     of the span or chunk; the first draw, for codes
--       7 body      the envelope's MessagePack but for seq and at (see events.encode_open)
--       8 ttl       ms that the job's keys live on once it is final
--       9 draws     draws logged once this event is written, for span, terminal and codes
--      10 trim      first entry of the spans stream that is still needed, '' to trim nothing
--      11 carry     the acoustic stage's state after the chunk, '' to leave it
--      12 type      of the event
--      13 after     draws that the log must have before a span; chunks before job.completed
--      14… id, blob pairs: conditioning parts for the spans stream; field, value pairs of the chunk for the audio stream
--
-- Reply {status, seq or 0, detail}: ok | already | gone (no log) | lost (not the lease's token) | conflict (same
-- identity, other data) | final (detail: which) | gap (detail: the next index)
local log, head, spans, audio, carry = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local kind, token, role, identity, digest, index = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])

local exists = redis.call('EXISTS', log) == 1
local seen = redis.call('HGET', head, 'i:' .. identity)
if kind == 'create' then
  if exists then
    return {seen == digest and 'already' or 'conflict', 0, ''}
  end
else
  if not exists then return {'gone', 0, ''} end
  if role ~= '' then
    local lease = role == 'talker' and KEYS[6] or KEYS[7]
    if redis.call('HGET', lease, 'token') ~= token then return {'lost', 0, ''} end
  end
  if seen == digest then return {'already', 0, ''} end
  local final = redis.call('HGET', head, 'final')
  if final and ARGV[12] ~= 'rows.freed' then return {'final', 0, final} end
  if seen then return {'conflict', 0, ''} end
  if kind == 'span' or kind == 'terminal' then
    local next_span = tonumber(redis.call('HGET', head, 'spans') or '0')
    if redis.call('HEXISTS', head, 'terminal') == 1 or index ~= next_span then
      return {'gap', 0, tostring(next_span)}
    end
    local draws = tonumber(redis.call('HGET', head, 'draws') or '0')
    if draws < tonumber(ARGV[13]) then return {'gap', 0, tostring(draws)} end
  elseif kind == 'codes' then
    local draws = tonumber(redis.call('HGET', head, 'draws') or '0')
    if index ~= draws then return {'gap', 0, tostring(draws)} end
  elseif kind == 'chunk' then
    local next_chunk = tonumber(redis.call('HGET', head, 'chunks') or '0')
    if index ~= next_chunk then return {'gap', 0, tostring(next_chunk)} end
  elseif ARGV[12] == 'job.completed' then
    local chunks = tonumber(redis.call('HGET', head, 'chunks') or '0')
    if chunks ~= tonumber(ARGV[13]) then return {'gap', 0, tostring(chunks)} end
  end
end

local function uint64(value)  -- MessagePack's uint 64, exact up to 2^53
  local bytes = {}
  for place = 8, 1, -1 do
    bytes[place] = string.char(value % 256)
    value = math.floor(value / 256)
  end
  return '\207' .. table.concat(bytes)
end

if kind == 'final' then  -- first, as a broker that is out of memory lets a script go on once it has written
  redis.call('DEL', spans, carry)
end
local now = redis.call('TIME')
local at = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
local seq = redis.call('HINCRBY', head, 'seq', 1)
local envelope = '\135' .. ARGV[7] .. '\163seq' .. uint64(seq) .. '\162at' .. uint64(at)
redis.call('XADD', log, seq .. '-0', 'e', envelope)
redis.call('HSET', head, 'i:' .. identity, digest)

if kind == 'span' or kind == 'terminal' or kind == 'codes' then
  if tonumber(redis.call('HGET', head, 'draws') or '0') < tonumber(ARGV[9]) then
    redis.call('HSET', head, 'draws', ARGV[9])
  end
  for part = 14, #ARGV, 2 do
    redis.call('XADD', spans, ARGV[part], 'x', ARGV[part + 1])
  end
end
if kind == 'span' or kind == 'terminal' then
  redis.call('HSET', head, 'spans', index + 1)
  if kind == 'terminal' then redis.call('HSET', head, 'terminal', 1) end
elseif kind == 'chunk' then
  redis.call('HSET', head, 'chunks', index + 1)
  redis.call('HINCRBY', head, 'bytes', #ARGV[15])
  redis.call('XADD', audio, (index + 1) .. '-0', unpack(ARGV, 14))
  if ARGV[11] ~= '' then redis.call('SET', carry, ARGV[11]) end
  if ARGV[10] ~= '' then redis.call('XTRIM', spans, 'MINID', ARGV[10]) end
elseif kind == 'final' then
  redis.call('HSET', head, 'final', ARGV[12])
  for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[8]) end
end
return {'ok', seq, ''}
