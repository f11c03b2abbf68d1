-- Pointers to jobs in a group's stream. Posting twice posts once; dropping what is not there is harmless.
-- A pointer leaves by XACK and XDEL, never by trimming, which would drop pending entries.
--
-- KEYS  stream posted                                                (one slot)
-- ARGV  post job | drop job group
local stream, posted = KEYS[1], KEYS[2]
local verb, job = ARGV[1], ARGV[2]
local entry = redis.call('HGET', posted, job)
if verb == 'post' then
  if entry then return 0 end
  entry = redis.call('XADD', stream, '*', 'job', job)
  redis.call('HSET', posted, job, entry)
  return 1
end
if not entry then return 0 end
if redis.call('EXISTS', stream) == 1 then
  redis.pcall('XACK', stream, ARGV[3], entry)
  redis.call('XDEL', stream, entry)
end
redis.call('HDEL', posted, job)
return 1
