-- Final jobs that no archive has yet. `reserve.lua` puts them there when they retire, and takes them out when they go.
--
-- KEYS  unarchived since counts                                       (one slot)
-- ARGV  claim    ttl_ms most                  take what is due
--       put_off  job claimed pause_ms outcome the claim lasts so long from now on, or the next one comes then
--       done     job claimed outcome          it is archived, or there is nothing of it to archive
--       again    job...                       archive these too, though they may have been
--
-- claim replies {claimed, job, job, ...}: whoever claims has the job until `claimed` (ms), and then the next one does.
-- put_off replies {its new `claimed`}, done {1}, and both {0} where another has claimed the job since, or it has gone;
-- they then change nothing. again replies how many were not there already. An outcome is counted by its name, but "".
local unarchived, since, counts = KEYS[1], KEYS[2], KEYS[3]
local verb, job = ARGV[1], ARGV[2]
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)

if verb == 'claim' then
  local claimed = now + tonumber(ARGV[2])
  local reply = {claimed}
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', unarchived, '-inf', now, 'LIMIT', 0, ARGV[3])) do
    redis.call('ZADD', unarchived, claimed, name)
    reply[#reply + 1] = name
  end
  return reply
end

if verb == 'again' then
  local added = 0
  for i = 2, #ARGV do
    added = added + redis.call('ZADD', unarchived, 'NX', now, ARGV[i])
    redis.call('ZADD', since, 'NX', now, ARGV[i])
  end
  return {added}
end

local function count(outcome)
  if outcome ~= '' then redis.call('HINCRBY', counts, outcome, 1) end
end

if tonumber(redis.call('ZSCORE', unarchived, job) or '0') ~= tonumber(ARGV[3]) then return {0} end
if verb == 'done' then
  redis.call('ZREM', unarchived, job)  -- first: what frees memory is done on a full broker too, and all that follows it
  redis.call('ZREM', since, job)
  count(ARGV[4])
  return {1}
end
count(ARGV[5])
local next_at = now + tonumber(ARGV[4])
redis.call('ZADD', unarchived, next_at, job)
return {next_at}
