"""Limits shared by all workers of a broker: the state lies in Redis, one script changes it atomically.

Pacing is the generic cell rate algorithm (ITU-T I.371): per limit one number, the time at which the next call
would be on schedule. A log of the last 60 s would be as exact and would let a whole minute's calls go in its
first second; paced calls keep to the limit in every window, and nearly fill every window.
"""

from __future__ import annotations

from collections.abc import Sequence

import redis.asyncio

from workers.limits._base import (
    BACKOFF_S,
    BREAKER_FAILURES,
    BURST_SHARE,
    GROWTH,
    LONGEST_BACKOFF_S,
    RATE_SHARE,
    Grant,
    Limits,
    Report,
    Want,
)

__all__ = ["RedisStore"]

SCRIPT = f"""
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local in_flight, rpm, tpm = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local lease, n_reports = tonumber(ARGV[4]), tonumber(ARGV[5])
local state = {{}}
local stored = redis.call('HGETALL', KEYS[1])
for i = 1, #stored, 2 do state[stored[i]] = tonumber(stored[i + 1]) end
local function get(name) return state[name] or 0 end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local change = ''

local function cut(flying, wait)
  state.strikes = get('strikes') + 1
  state.threshold, state.window, state.cut = math.max(1, 0.75 * flying), 1, now
  if wait <= 0 then
    local delay = math.min({LONGEST_BACKOFF_S}, {BACKOFF_S} * 2 ^ (state.strikes - 1))
    state.pause = math.max(get('pause'), now + delay)
  end
end

local at = 6
for _ = 1, n_reports do
  local id, result = ARGV[at], ARGV[at + 1]
  local granted, wait, tokens = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  at = at + 5
  local flying = redis.call('ZCARD', KEYS[2])
  redis.call('ZREM', KEYS[2], id)
  if tpm > 0 then state.tokens_at = get('tokens_at') + tokens * 60 / (tpm * {RATE_SHARE}) end
  if wait > 0 then state.pause = math.max(get('pause'), now + wait) end
  if granted >= get('cut') then
    if result == 'ok' then
      state.strikes, state.failures = 0, 0
      if get('open') == 1 then change = 'closed' end
      state.open = 0
      if get('window') > 0 then
        state.window = state.window + (state.window < get('threshold') and 1 or {GROWTH} / state.window)
        if state.window >= in_flight then state.window = 0 end
      end
    elseif result == 'busy' then
      cut(flying, wait)
      change = 'paused'
    elseif result == 'failed' then
      state.failures = get('failures') + 1
      if state.failures >= {BREAKER_FAILURES} or get('open') == 1 then
        if get('open') == 0 then change = 'opened' end
        state.open = 1
        cut(flying, wait)
      end
    end
  end
end

local count, wait = 0, 0
local paused = math.max(0, get('pause') - now)
local wanted = (#ARGV - at + 1) / 2
if paused > 0 then
  wait = paused
else
  local most = in_flight
  if get('window') > 0 then most = math.min(most, math.floor(state.window)) end
  local places = most - redis.call('ZCARD', KEYS[2])
  local interval, burst = 0, 0
  if rpm > 0 then
    interval = 60 / (rpm * {RATE_SHARE})
    burst = (math.max(1, {BURST_SHARE} * rpm) - 1) * interval
  end
  for i = 0, wanted - 1 do
    if count >= places then wait = -1 break end
    local late = 0
    if rpm > 0 then late = get('requests_at') - now - burst end
    if tpm > 0 then late = math.max(late, get('tokens_at') - now - 60 * {BURST_SHARE}) end
    if late > 0 then wait = late break end
    if rpm > 0 then state.requests_at = math.max(get('requests_at'), now) + interval end
    if tpm > 0 then
      local cost = tonumber(ARGV[at + 2 * i + 1]) * 60 / (tpm * {RATE_SHARE})
      state.tokens_at = math.max(get('tokens_at'), now) + cost
    end
    redis.call('ZADD', KEYS[2], now + lease, ARGV[at + 2 * i])
    count = count + 1
  end
end

local changed = {{}}
for name, value in pairs(state) do
  changed[#changed + 1] = name
  changed[#changed + 1] = string.format('%.6f', value)
end
if #changed > 0 then redis.call('HSET', KEYS[1], unpack(changed)) end
redis.call('EXPIRE', KEYS[1], 86400)
redis.call('EXPIRE', KEYS[2], 86400)
local function text(number) return string.format('%.6f', number) end
return {{count, text(now), text(wait), text(paused), change}}
"""


class RedisStore:
    """Keeps endpoints' states in Redis, under `assay:limit:{endpoint}`."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._script = client.register_script(SCRIPT)

    async def exchange(
        self, endpoint: str, limits: Limits, reports: Sequence[Report], wants: Sequence[Want]
    ) -> Grant:
        """See `LimitStore.exchange`.

        Raises:
            RedisError: The broker cannot be reached; the state there is as it was.
        """
        arguments: list[str | float] = [
            limits.in_flight,
            limits.requests_per_minute or 0,
            limits.tokens_per_minute or 0,
            limits.lease_s,
            len(reports),
        ]
        for one in reports:
            arguments += [one.id, one.result.value, f"{one.granted_at:.6f}", one.wait_s, one.tokens]
        for want in wants:
            arguments += [want.id, want.tokens]
        # Braces: both keys of an endpoint lie on the same node of a cluster.
        keys = [f"assay:limit:{{{endpoint}}}:state", f"assay:limit:{{{endpoint}}}:flight"]
        count, now, wait_s, paused_s, change = await self._script(keys, arguments)
        return Grant(int(count), float(now), float(wait_s), float(paused_s), change.decode())
