-- Keep a recording that a request brought, for as long as its job may need it, within a bound of bytes for all of them.
--
-- KEYS  recording expiring sizes                                    (one slot)
-- ARGV  sha256 content ttl_ms max_bytes
--
-- Replies {1, 0} where it is kept, until the later of this time and the one that it had; {0, ms} where there is no room,
-- with the time until there is (-1: never, it is too large alone).
local recording, expiring, sizes = KEYS[1], KEYS[2], KEYS[3]
local sha256, content, max_bytes = ARGV[1], ARGV[2], tonumber(ARGV[4])
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local goes = now + tonumber(ARGV[3])

local function forget(name)
  redis.call('HINCRBY', sizes, '', -tonumber(redis.call('HGET', sizes, name) or '0'))
  redis.call('HDEL', sizes, name)
  redis.call('ZREM', expiring, name)
end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', expiring, '-inf', now)) do forget(name) end

local known = redis.call('ZSCORE', expiring, sha256)
if known and redis.call('EXISTS', recording) == 1 then
  goes = math.max(goes, tonumber(known))
else
  if known then forget(sha256) end
  local missing = tonumber(redis.call('HGET', sizes, '') or '0') + #content - max_bytes
  if missing > 0 then
    local oldest = redis.call('ZRANGE', expiring, 0, -1, 'WITHSCORES')
    for i = 1, #oldest, 2 do
      missing = missing - tonumber(redis.call('HGET', sizes, oldest[i]) or '0')
      if missing <= 0 then return {0, tonumber(oldest[i + 1]) - now} end
    end
    return {0, -1}
  end
  redis.call('SET', recording, content)
  redis.call('HSET', sizes, sha256, #content)
  redis.call('HINCRBY', sizes, '', #content)
end
redis.call('PEXPIREAT', recording, goes)
redis.call('ZADD', expiring, goes, sha256)
return {1, 0}
