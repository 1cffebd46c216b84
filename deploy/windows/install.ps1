# Runs one Shardline process on a Windows machine from its start on, and again whenever it ends. Run as administrator:
#
#   .\install.ps1 -Role stage-0 -Command "stage-run --index 0 --shards C:\shardline\shards" -Broker tls://broker.lan:4222
#   .\install.ps1 -Role stage-0 -Remove
#
# A scheduled task does what a service would: Windows brings no way to run a console program as one. C:\shardline holds
# .venv, shards, keys\ROLE.nk and tls\ca.pem (shardline broker-config writes keys and certificate).
param(
    [Parameter(Mandatory)] [ValidatePattern('^[a-z]+(-[A-Za-z0-9]+)?$')] [string] $Role,
    [string] $Command,
    [string] $Broker = 'tls://broker.lan:4222',
    [string] $Folder = 'C:\shardline',
    [switch] $Remove
)
$ErrorActionPreference = 'Stop'
$task = "Shardline $Role"

if ($Remove) {
    Stop-ScheduledTask -TaskName $task -ErrorAction SilentlyContinue
    Unregister-ScheduledTask -TaskName $task -Confirm:$false
    Write-Output "removed $task"
    exit 0
}
if (-not $Command) { throw 'what is to run? -Command "stage-run --index 0 --shards ..."' }

$key = Join-Path $Folder "keys\$Role.nk"
$ca = Join-Path $Folder 'tls\ca.pem'
foreach ($file in $key, $ca) { if (-not (Test-Path $file)) { throw "$file is missing: copy it from the folder of broker-config" } }

# Nobody but the process (NT AUTHORITY\LOCAL SERVICE, S-1-5-19) and administrators (S-1-5-32-544) reads the key.
icacls $key /inheritance:r /grant:r '*S-1-5-19:R' '*S-1-5-32-544:F' | Out-Null
if ($LASTEXITCODE -ne 0) { throw "cannot restrict who reads $key" }
icacls $Folder /grant '*S-1-5-19:(OI)(CI)RX' | Out-Null
$logs = Join-Path $Folder 'logs'
New-Item -ItemType Directory -Force $logs | Out-Null
icacls $logs /grant '*S-1-5-19:(OI)(CI)M' | Out-Null

# A file of ours carries the environment: keys and addresses are not on a command line that others can list.
$start = Join-Path $Folder "run-$Role.cmd"
$log = Join-Path $logs "$Role.log"
@(
    '@echo off'
    "set NATS_URL=$Broker"
    "set SHARDLINE_CREDENTIALS=$key"
    "set SHARDLINE_TLS_CA=$ca"
    "`"$Folder\.venv\Scripts\$($Command.Split(' ')[0]).exe`" $(($Command -split ' ', 2)[1]) --log json >> `"$log`" 2>&1"
) | Set-Content -Encoding ascii $start

$action = New-ScheduledTaskAction -Execute $env:ComSpec -Argument "/c `"$start`"" -WorkingDirectory $Folder
$trigger = New-ScheduledTaskTrigger -AtStartup
$who = New-ScheduledTaskPrincipal -UserId 'NT AUTHORITY\LOCAL SERVICE' -LogonType ServiceAccount
$settings = New-ScheduledTaskSettingsSet -RestartCount 999 -RestartInterval (New-TimeSpan -Minutes 1) `
    -ExecutionTimeLimit ([TimeSpan]::Zero) -AllowStartIfOnBatteries -DontStopIfGoingOnBatteries -MultipleInstances IgnoreNew
Register-ScheduledTask -TaskName $task -Action $action -Trigger $trigger -Principal $who -Settings $settings -Force | Out-Null
Start-ScheduledTask -TaskName $task
Write-Output "started $task, log in $log"
