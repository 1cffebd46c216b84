# Opens the broker's port to the local network, or the gateway's, or closes it again. Run as administrator, only on the
# machine of the broker or the gateway: stages, decoder and draft only connect, they need no rule.
#
#   .\firewall.ps1 -Name broker -Port 4222
#   .\firewall.ps1 -Name gateway -Port 8000 -From 10.1.0.0/16
#   .\firewall.ps1 -Name broker -Remove
param(
    [Parameter(Mandatory)] [ValidateSet('broker', 'gateway', 'cluster', 'leaf')] [string] $Name,
    [int] $Port,
    [string] $From = 'LocalSubnet',
    [switch] $Remove
)
$ErrorActionPreference = 'Stop'
$rule = "Shardline $Name"
Get-NetFirewallRule -DisplayName $rule -ErrorAction SilentlyContinue | Remove-NetFirewallRule
if ($Remove) {
    Write-Output "closed: $rule"
    exit 0
}
if ($Port -lt 1) { throw 'which port? -Port 4222' }
# Not in public networks: a laptop that travels keeps its door shut.
New-NetFirewallRule -DisplayName $rule -Direction Inbound -Action Allow -Protocol TCP -LocalPort $Port `
    -RemoteAddress $From -Profile Domain, Private | Out-Null
Write-Output "open to $From on TCP ${Port}: $rule"
