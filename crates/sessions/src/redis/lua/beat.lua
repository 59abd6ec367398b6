-- beat: prefix, node, token, name, milliseconds of the lease.
-- Takes or renews a lease. Returns whether it was held, some sessions of this node that others have ended, if any, and the nodes
-- (by nodes.lua, which follows); or nothing when another process has the lease.

-- Entries of the mail hash per page, approximately.
local MAIL_PAGE = 100
-- Steps through the mail hash: its table has at most 16,384 slots, and a step visits a thousand empty ones.
local MAIL_STEPS_MAX = 100

local lease = prefix .. 'lease:' .. ARGV[2]
local was_held = is_alive(ARGV[2])
if was_held and redis.call('GET', lease) ~= ARGV[3] then return {} end
-- When Redis is out of memory it refuses a script whose first write may need memory, but no later write: so the first write
-- needs none.
if was_held then
  redis.call('PEXPIRE', lease, ARGV[5])
else
  redis.call('DEL', lease)
  redis.call('SET', lease, ARGV[3], 'PX', ARGV[5])
end
redis.call('HSET', prefix .. 'nodes', ARGV[2], ARGV[4])

-- Entries that were read are removed before the next heartbeat, so that the scan begins with empty slots.
local mail, cursor = {}, '0'
for _ = 1, MAIL_STEPS_MAX do
  local page = redis.call('HSCAN', prefix .. 'mail:' .. ARGV[2], cursor, 'COUNT', MAIL_PAGE)
  cursor = page[1]
  for i = 1, #page[2] do mail[#mail + 1] = page[2][i] end
  if cursor == '0' or #mail >= 2 * MAIL_PAGE then break end
end

