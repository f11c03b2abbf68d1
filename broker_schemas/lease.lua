-- Who owns a job in a role. One worker at a time, by a random token; time is the broker's own.
--
-- KEYS  lease log head                                               (one slot)
-- ARGV  take    token worker ttl_ms profile role max_strikes
--       renew   token ttl_ms
--       release token handed_over error
--
-- take replies    {ok, attempt, strikes} | {held, by whom, ms left} | {profile, the pinned one} | {gone} | {final, type}
--                 | {exhausted, last error}
-- renew replies   {ok, final type or ''} | {lost} | {gone}
-- release replies {ok} | {lost}
local lease, log, head = KEYS[1], KEYS[2], KEYS[3]
local verb, token = ARGV[1], ARGV[2]
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local function field(name) return redis.call('HGET', lease, name) or '' end

if redis.call('EXISTS', log) == 0 then return {'gone'} end
local final = redis.call('HGET', head, 'final') or ''

if verb == 'renew' then
  if field('token') ~= token then return {'lost'} end
  redis.call('HSET', lease, 'renewed', now, 'expires', now + tonumber(ARGV[3]))
  return {'ok', final}
end

if verb == 'release' then
  if field('token') ~= token then return {'lost'} end
  redis.call('HSET', lease, 'token', '', 'expires', now, 'handed_over', ARGV[3])
  if ARGV[4] ~= '' then redis.call('HSET', lease, 'error', ARGV[4]) end
  return {'ok'}
end

local worker, ttl, profile, role, max_strikes = ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6], tonumber(ARGV[7])
if final ~= '' then return {'final', final} end
local expires = tonumber(field('expires')) or 0
if field('token') ~= token and expires > now then return {'held', field('worker'), expires - now} end
local pinned = redis.call('HGET', head, 'profile:' .. role)
if pinned and pinned ~= profile then return {'profile', pinned} end

-- A takeover of a job that logged nothing new since the last one is a strike, unless it was handed over.
local progress = tonumber(redis.call('HGET', head, role == 'talker' and 'draws' or 'chunks') or '0')
local attempt = tonumber(field('attempt')) or 0
local strikes = tonumber(field('strikes')) or 0
if attempt > 0 and field('token') ~= token and field('handed_over') ~= '1' then
  if progress > (tonumber(field('progress')) or 0) then strikes = 0 else strikes = strikes + 1 end
end
if strikes > max_strikes then return {'exhausted', field('error')} end
attempt = attempt + 1
redis.call('HSET', lease, 'token', token, 'worker', worker, 'attempt', attempt, 'strikes', strikes,
  'progress', progress, 'renewed', now, 'expires', now + ttl, 'handed_over', '0')
redis.call('HSET', head, 'profile:' .. role, profile)
return {'ok', attempt, strikes}
