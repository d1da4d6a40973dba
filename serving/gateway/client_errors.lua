-- Triton answers 500 where a request is no valid JSON or lacks a member. That is the client's fault,
-- and must not look like a server's: not to the client, and not to the error budget.
local CLIENT_ERRORS = {
  '{"error":"failed to parse the request JSON buffer',
  '{"error":"Unable to parse \'',
  '{"error":"failed to get request params',
}

function envoy_on_response(handle)
  if handle:headers():get(":status") ~= "500" then
    return
  end
  local body = handle:body()
  if body == nil then
    return
  end
  local start = body:getBytes(0, math.min(body:length(), 64))
  for _, error in ipairs(CLIENT_ERRORS) do
    if start:sub(1, #error) == error then
      handle:headers():replace(":status", "400")
      return
    end
  end
end
